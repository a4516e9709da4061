"""Markets of laws that are drawn at random from the literature: what is learned that nobody planted for it.

`bars` draws what no law changes and lets a law move the sessions, `quantities` holds what laws read, `grammar` draws,
words and calibrates laws, and `study` measures learners on them.
"""
