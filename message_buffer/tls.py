"""The TLS settings of every connection that a function opens."""

import ssl
from functools import cache

# Reading the system's certificates takes 16 ms of CPU time, so read them once, during the import. Lambda gives an
# instance a full CPU during the import, and only a small part of a CPU afterwards.
TLS = ssl.create_default_context()


@cache
def tls_with(ca_file: str | None) -> ssl.SSLContext:
    """Return the settings that also trust the certificates in this file, if there is one."""
    if ca_file is None:
        return TLS
    context = ssl.create_default_context()
    context.load_verify_locations(ca_file)
    return context
