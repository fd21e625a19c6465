// Package python is where the client in Python, watch.py, is tested.
package python
