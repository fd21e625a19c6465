// Package ui tests the page of a process in headless Chromium. It has no code of its own.
package ui
