"""The channels on which a reply is sent: one module each. They may import `base` and the HTTP client."""
