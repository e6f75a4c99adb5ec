"""The function that consumers may invoke. It has two of admin's operations, and permissions only for these."""
