"""Running and reporting: profiles, run folders, figures, the command line. Nothing about learning."""
