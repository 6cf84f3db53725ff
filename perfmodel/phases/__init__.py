"""An iteration as phases, one after the other: plain arithmetic on numbers, arrays or symbols."""
