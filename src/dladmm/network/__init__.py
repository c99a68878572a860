"""How blocks make a chain: from a torch module, a graph, scaled inputs."""
