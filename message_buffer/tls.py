"""The TLS settings of every connection that a function opens to AWS."""

import ssl

# Reading the system's certificates takes 16 ms of CPU time, so it is done once. It is done with the import, because
# Lambda gives an instance a whole CPU while it imports the function, and a small part of one afterwards.
TLS = ssl.create_default_context()
