package laws

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestLogMessagesAreConstant looks at calls of loggers, which are called log or logger in this tree.
func TestLogMessagesAreConstant(t *testing.T) {
	const why = `
Law 12: the message of a log line is a constant text, and what differs from line to line is in attributes. Lines that others can cause
are counted by their messages (internal/loglimit); messages that differ would each have room of their own.`
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, p.sources()) {
			f.calls(func(call *ast.CallExpr, name *ast.Ident, on ast.Expr) {
				if logs(name, on) && len(call.Args) > 0 && !isText(call.Args[0]) {
					t.Errorf("%s: the message is not constant.%s", f.line(call), why)
				}
			})
		}
	}
}

// TestAwaitedMessagesAreLogged looks at the scenarios that wait for a line in the log of the program. Few run in a test.
func TestAwaitedMessagesAreLogged(t *testing.T) {
	logged, awaited := map[string]bool{}, map[string]string{} // the latter with where that is
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, p.sources()) {
			f.calls(func(call *ast.CallExpr, name *ast.Ident, on ast.Expr) {
				switch {
				case logs(name, on) && !in(p.rel(), "test") && len(call.Args) > 0:
					logged[text(call.Args[0])] = true
				case name.Name == "awaitLogged":
					awaited[text(call.Args[1])] = f.line(call)
				}
			})
		}
	}
	if len(awaited) == 0 {
		t.Error("no scenario waits for a line in the log: this test looks for calls of another function than they make")
	}
	for message, line := range awaited {
		if !logged[message] {
			t.Errorf("%s: waits for the message %q, which is a constant text in no log line of the product", line, message)
		}
	}
}

// calls visits the calls of functions and methods that have a name. on is what a method is called on, nil for a function.
func (f *file) calls(visit func(call *ast.CallExpr, name *ast.Ident, on ast.Expr)) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			switch fun := call.Fun.(type) {
			case *ast.Ident:
				visit(call, fun, nil)
			case *ast.SelectorExpr:
				visit(call, fun.Sel, fun.X)
			}
		}
		return true
	})
}

// logs reports whether a method is one of a logger that logs a line.
func logs(name *ast.Ident, on ast.Expr) bool {
	return slices.Contains([]string{"Debug", "Info", "Warn", "Error"}, name.Name) && isLogger(on)
}

func isLogger(x ast.Expr) bool {
	name := ""
	switch x := x.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	return slices.Contains([]string{"log", "logger"}, strings.ToLower(name))
}

// text is what a text in the source says, "" for what is none.
func text(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			s, _ := strconv.Unquote(x.Value) // the parser has checked it
			return s
		}
	case *ast.BinaryExpr:
		return text(x.X) + text(x.Y)
	}
	return ""
}

// isText reports whether an expression is a text in the source, perhaps in parts.
func isText(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.BasicLit:
		return x.Kind == token.STRING
	case *ast.BinaryExpr:
		return isText(x.X) && isText(x.Y)
	}
	return false
}
