package laws

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// TestLogMessagesAreConstant looks at calls of loggers, which are called log or logger in this tree.
func TestLogMessagesAreConstant(t *testing.T) {
	const why = `
Law 12: the message of a log line is a constant text, and what differs from line to line is in attributes. Lines that others can cause
are counted by their messages (internal/loglimit); messages that differ would each have room of their own.`
	methods := []string{"Debug", "Info", "Warn", "Error"}
	for _, p := range packages(t) {
		for _, f := range parse(t, &p, p.sources()) {
			ast.Inspect(f.File, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) == 0 {
					return true
				}
				sel, ok := call.Fun.(*ast.SelectorExpr)
				if ok && slices.Contains(methods, sel.Sel.Name) && isLogger(sel.X) && !isText(call.Args[0]) {
					t.Errorf("%s: the message is not constant.%s", f.line(call), why)
				}
				return true
			})
		}
	}
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
