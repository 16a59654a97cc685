"""Layers that call a network with inputs by their names, one class for each number of inputs: what ``to_static`` makes a program of must name each."""

from paddle import nn


class Calls(nn.Layer):
    def __init__(self, net, names, fixed):
        super().__init__()
        self.net, self.names, self.fixed = net, names, fixed

    def call(self, *inputs):
        return self.net(**dict(zip(self.names, inputs)), **self.fixed)  # noqa: B905  what to_static reads of zip has no strict


class One(Calls):
    def forward(self, first):
        return self.call(first)


class Two(Calls):
    def forward(self, first, second):
        return self.call(first, second)


class Three(Calls):
    def forward(self, first, second, third):
        return self.call(first, second, third)


LAYERS = {1: One, 2: Two, 3: Three}
