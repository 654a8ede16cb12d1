"""Several servers on one database: nodes compute steps with the protocol's own actions, the database compares them"""
