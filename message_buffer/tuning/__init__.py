"""How long authors are silent before they go on: counted, estimated, and turned into a recommended wait."""
