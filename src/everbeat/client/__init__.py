"""The SDK's client: one request builder, thin sync and async shells, HTTP and in-process transports."""
