"""Collectives: operators in which all ranks of a run take part, in one order. ``ring_id`` names the group of ranks.

Their dims are over the symbol `ranks` where ``nranks`` is 0, so that one program is described for any number of ranks. Where a run has one
rank, they change nothing. A sum that is started without being waited for (``use_calc_stream`` False) is under way until
``c_sync_comm_stream`` waits for it.
"""
