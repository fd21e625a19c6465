// Package apicluster keeps objects of package model in a real API server: it writes them in the API's form, and waits until
// All watchers have them.
package apicluster
