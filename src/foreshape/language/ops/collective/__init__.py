"""Collectives: operators run by all ranks of a process group, in one order. ``ring_id`` names the group.

Their dims are over the symbol `ranks` where ``nranks`` is 0, so one program is described for any number of ranks. In a run of one rank, they change nothing. A
sum started without waiting (``use_calc_stream`` False) is under way until ``c_sync_comm_stream`` waits for it.
"""
