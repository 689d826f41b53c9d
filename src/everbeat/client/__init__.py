"""The SDK's client: requests, operations, and the transports over HTTP (async and blocking) and in process."""
