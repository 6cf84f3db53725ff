"""An iteration as a sum of phases, evaluated on numbers, arrays or symbols."""
