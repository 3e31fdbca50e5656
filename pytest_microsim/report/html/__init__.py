"""The results of a run as one HTML file, which needs neither network nor server. Nothing in here knows pytest.

``page.py`` puts the file together from what ``overview.py``, ``details.py``, ``curves.py`` and ``media.py`` make of the
results, and from ``assets/``: the program that shows them in a browser, in small scripts that are joined as they are.
"""
