"""A model of several servers on one database: nodes compute steps with the protocol's actions, the database compares"""
