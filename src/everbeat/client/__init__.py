"""The client side of the SDK: requests, operations, and the HTTP (async and blocking) and in-process transports."""
