"""Views of a program: summary, drawing, notebook cards, explanations of sizes, and the sizes that its inputs take."""
