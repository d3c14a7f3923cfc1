"""`tidegate up`: everything on one machine, to try it out."""
