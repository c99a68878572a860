"""The client app: messages to and from the process in which this silo trains."""

from dladmm.silos.flower import client_app

app = client_app("digits_silos.task:train_here")
