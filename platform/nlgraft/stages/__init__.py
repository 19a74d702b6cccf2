"""Stages that systems are composed of.

``config`` and ``metrics`` hold parts of systems' configs and metric tables, ``kinds`` the typed settings and
inputs of each stage, ``graph`` pieces of stage graphs; none of them imports torch. ``run`` holds the
functions that stages run.
"""
