"""The highest load within an SLO, and how sure that is."""
