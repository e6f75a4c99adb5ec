"""The admin function: answers operators' questions and carries out their commands. `bufferctl` invokes it."""
