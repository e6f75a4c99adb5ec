"""The admin function: the operators' questions and commands. `bufferctl` calls it."""
