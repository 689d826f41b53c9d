"""The dashboard: server-rendered pages on the services of the engine. They work without JavaScript; htmx keeps them current."""
