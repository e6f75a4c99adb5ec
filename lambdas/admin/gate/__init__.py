"""The function that consumers may invoke: two of admin's operations, with the permissions for these two."""
