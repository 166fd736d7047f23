package main

import "go/ast"

// kind distinguishes declared names.
type kind int

const (
	otherName kind = iota // a function, parameter, variable, constant or label
	typeName
	memberName // a method or field
)

// declaration is a name at the place where it is declared.
type declaration struct {
	name *ast.Ident
	kind kind
}

// declarations lists the names that a file declares, each once.
func declarations(tree *ast.File) []declaration {
	var list []declaration
	kinds := map[*ast.Ident]kind{}
	members := func(fields *ast.FieldList) {
		for _, field := range fields.List {
			for _, name := range field.Names {
				kinds[name] = memberName
			}
		}
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				kinds[n.Name] = memberName
			}
		case *ast.StructType:
			members(n.Fields)
		case *ast.InterfaceType:
			members(n.Methods)
		case *ast.TypeSpec:
			kinds[n.Name] = typeName
		case *ast.Ident:
			kind, known := kinds[n]
			// The objects of the parser lead to the place of declaration.
			declared := n.Obj != nil && n.Obj.Pos() == n.Pos()
			if n.Name != "_" && (known || declared) {
				list = append(list, declaration{n, kind})
			}
		}
		return true
	})
	return list
}
