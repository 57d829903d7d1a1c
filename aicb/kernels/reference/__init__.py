"""How libraries divide work among SMs, and the reference times that follow: shapes that measurements correct."""
