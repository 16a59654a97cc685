"""Views of a program: summary, drawing, notebook cards, explanations of sizes, and the accepted sizes of inputs."""
