"""Fork an isolated microVM from a warmed robot simulator for every test and every seed."""
