"""The assistants that write a reply: one module each. They may import `base` and the HTTP client."""
