package rules

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"strings"
	"testing"
	"unicode/utf8"
)

// limit is a largest size, which holds in all Go packages. larger has the exceptions with their sizes, which may only shrink.
type limit struct {
	most   int
	unit   string
	larger map[string]int
}

// check compares sizes, by name, with the limit.
func (l limit) check(t *testing.T, sizes map[string]int) {
	t.Helper()
	if len(sizes) < 100 {
		t.Errorf("only %d sizes: the test no longer finds them", len(sizes))
	}
	for name, size := range sizes {
		before, listed := l.larger[name]
		switch {
		case size > l.most && !listed:
			t.Errorf("%s has %d %s, more than %d: divide it", name, size, l.unit, l.most)
		case size > before && listed:
			t.Errorf("%s has %d %s, and it had %d, which is more than %d: divide it", name, size, l.unit, before, l.most)
		case size <= l.most && listed:
			t.Errorf("%s has only %d %s now: remove it from the exceptions", name, size, l.unit)
		case size < before:
			t.Errorf("%s has only %d %s now: lower its exception of %d", name, size, l.unit, before)
		}
	}
	for name := range l.larger {
		if _, ok := sizes[name]; !ok {
			t.Errorf("%s does not exist: remove it from the exceptions", name)
		}
	}
}

// The limits of sizes. A reader should be able to keep a type, a function or a file in mind. Older types that are larger are listed,
// and may only shrink. Those with more than 40 methods, and those whose fields a format sets, have a reason.
var (
	maxFields = limit{15, "fields", map[string]int{
		"bench/chaos.chaos":                      17,
		"bench/measure.Row":                      16, // the keys of a JSON file of results
		"bench/phases.workload":                  22,
		"bench/roofline.Agent":                   16,
		"bench/roofline.Device":                  19,
		"bench/store.LoadResult":                 18, // the keys of a JSON file of results
		"bench/studies/learned.Result":           18, // the keys of a JSON file of results
		"bindings/torch.Device":                  16,
		"cmd/mgrpo.chatCmd":                      17, // one field for each flag, most in structs that commands share
		"cmd/mgrpo.cli":                          22, // one field for each command
		"cmd/mgrpo.generateCmd":                  16, // one field for each flag, most in structs that commands share
		"trainer/agent.Trajectory":               18, // the keys of a line of trajectories, as JSON
		"trainer/agent/gateway.AgentServer":      16,
		"trainer/agent/gateway.chatRequest":      26, // the keys of a request, as OpenAI defines them
		"trainer/agent/gateway.options":          16, // the keys of a request, as OpenAI defines them
		"trainer/agent/gateway.responsesRequest": 20, // the keys of a request, as OpenAI defines them
		"trainer/agent/gateway.textRequest":      21, // the keys of a request, as OpenAI defines them
		"trainer/agent/play.Player":              17,
		"trainer/config.Agent":                   24, // the keys of a section of the configuration
		"trainer/config.GRPO":                    36, // the keys of a section of the configuration
		"trainer/config.MCP":                     16, // the keys of a section of the configuration
		"trainer/config.Shape":                   17, // the keys of a section of the configuration
		"trainer/mgrpo.LossStats":                25, // each field is a metric, and a key of its JSON
		"trainer/model.Model":                    19,
		"trainer/model.layer":                    22,
		"trainer/model/arch.Config":              27,
		"trainer/model/arch.family":              18,
		"trainer/run/assemble.AgentParts":        16,
		"trainer/show/report.line":               24, // the keys of a line of trajectories, as JSON
		"trainer/show/report.page":               24,
		"trainer/show/report.trajectory":         16, // the keys of the JSON that the page's script reads
		"trainer/team/archive.Line":              25, // the keys of a line of trajectories, as JSON
	}}
	maxMethods = limit{20, "methods and functions whose first parameter points to it", map[string]int{
		"bench/chaos.chaos":                      37,
		"bench/kernels.deviceTensors":            31,
		"bindings/torch.Scope":                   29,
		"bindings/torch.Tensor":                  69, // most wrap one call of LibTorch or of a kernel
		"trainer/agent.Template":                 41, // many find out one property of a template each
		"trainer/agent/gateway.AgentServer":      24,
		"trainer/config.Config":                  54, // many check or derive one section each
		"trainer/engine/learner.State":           21,
		"trainer/engine/policy/local.pages":      25,
		"trainer/model.Model":                    37,
		"trainer/model/arch.Config":              34,
		"trainer/model/arch.keys":                107, // most read a few keys of one family
		"trainer/model/arch.layer":               38,
		"trainer/model/tokenizer.Tokenizer":      26,
		"trainer/model/tokenizer.component":      22,
		"trainer/model/tokenizer/jinja.parser":   32,
		"trainer/model/tokenizer/jinja.renderer": 70, // most are one filter or function of the language each
		"trainer/model/weights.opener":           23,
		"trainer/run/selftest.cachedTrial":       41, // most check one kernel each
		"trainer/run/selftest.trial":             35,
		"trainer/show/report.run":                26,
	}}
	functionLines = limit{60, "lines", nil}
	fileLines     = limit{500, "lines", nil}

	// Tables of cases make tests longer.
	testFunctionLines = limit{100, "lines", nil}
	testFileLines     = limit{700, "lines", nil}
)

// eachGoFile visits every Go file. pkg is its folder, with _test at the end for external tests.
func eachGoFile(t *testing.T, visit func(name, pkg string, content []byte, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	eachFile(t, func(name string, content []byte) {
		if !strings.HasSuffix(name, ".go") {
			return
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, name, content, 0)
		if err != nil {
			t.Error(err)
			return
		}
		pkg := path.Dir(name)
		if strings.HasSuffix(file.Name.Name, "_test") {
			pkg += "_test"
		}
		visit(name, pkg, content, fset, file)
	})
}

// TestFunctionsAreShort checks the lines of functions, from the first to the last.
func TestFunctionsAreShort(t *testing.T) {
	code, tests := map[string]int{}, map[string]int{}
	eachGoFile(t, func(name, _ string, _ []byte, fset *token.FileSet, file *ast.File) {
		sizes := code
		if strings.HasSuffix(name, "_test.go") {
			sizes = tests
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				called := f.Name.Name
				if f.Recv != nil {
					called = typeName(f.Recv.List[0].Type) + "." + called
				}
				sizes[name+": "+called] = fset.Position(f.End()).Line - fset.Position(f.Pos()).Line + 1
			}
		}
	})
	functionLines.check(t, code)
	testFunctionLines.check(t, tests)
}

// TestFilesAreShort checks the lines of Go files.
func TestFilesAreShort(t *testing.T) {
	code, tests := map[string]int{}, map[string]int{}
	eachGoFile(t, func(name, _ string, content []byte, _ *token.FileSet, _ *ast.File) {
		sizes := code
		if strings.HasSuffix(name, "_test.go") {
			sizes = tests
		}
		sizes[name] = bytes.Count(content, []byte("\n"))
	})
	fileLines.check(t, code)
	testFileLines.check(t, tests)
}

// maxColumns is the length of a line of Go, C++ and CUDA, with tabs of 4 columns. Tests may have longer lines, for tables of cases.
const maxColumns = 160

// TestLinesAreShort finds lines of more columns.
func TestLinesAreShort(t *testing.T) {
	eachFile(t, func(name string, content []byte) {
		switch path.Ext(name) {
		case ".go", ".cpp", ".h", ".cu", ".cuh":
		default:
			return
		}
		if strings.HasSuffix(strings.TrimSuffix(name, path.Ext(name)), "_test") {
			return
		}
		number := 0
		for line := range bytes.Lines(content) {
			number++
			columns := utf8.RuneCount(bytes.TrimRight(line, "\n")) + 3*bytes.Count(line, []byte("\t"))
			if columns > maxColumns {
				t.Errorf("%s:%d has %d columns: at most %d", name, number, columns, maxColumns)
			}
		}
	})
}

// packageType is a type of a package.
type packageType struct {
	pkg     string
	imports map[string]string // the packages of this repository that its file imports, by their names in the file
	fields  *ast.StructType   // nil: the type is not a struct
	methods map[string]bool   // methods, and functions that could be, except those in tests
}

// typesOfPackages has the types of each package by their names.
type typesOfPackages map[string]map[string]*packageType

// types returns the types of all packages.
func types(t *testing.T) typesOfPackages {
	t.Helper()
	out := typesOfPackages{}
	eachGoFile(t, func(name, pkg string, _ []byte, _ *token.FileSet, file *ast.File) {
		if out[pkg] == nil {
			out[pkg] = map[string]*packageType{}
		}
		of := func(name string) *packageType {
			if out[pkg][name] == nil {
				out[pkg][name] = &packageType{pkg: pkg, methods: map[string]bool{}}
			}
			return out[pkg][name]
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					d := of(n.Name.Name)
					d.fields, d.imports = s, imports(file)
				}
			case *ast.FuncDecl:
				if strings.HasSuffix(name, "_test.go") {
					break
				}
				if n.Recv != nil {
					of(typeName(n.Recv.List[0].Type)).methods[n.Name.Name] = true
				} else if receiver := couldReceive(n); receiver != "" {
					of(receiver).methods["func "+n.Name.Name] = true
				}
			}
			return true
		})
	})
	return out
}

// couldReceive returns the name of the type to which a function's first parameter points, or "" if the function could not be a method of a
// type of its package. Constructors, whose names begin with "new", remain functions.
func couldReceive(f *ast.FuncDecl) string {
	if len(f.Type.Params.List) == 0 || f.Type.TypeParams != nil || strings.HasPrefix(strings.ToLower(f.Name.Name), "new") {
		return ""
	}
	first, ok := f.Type.Params.List[0].Type.(*ast.StarExpr)
	if !ok || strings.Contains(typeName(first), ".") {
		return ""
	}
	return typeName(first)
}

// TestTypesAreSmall checks the fields of structs and the methods of types. A function whose first parameter is a pointer to a type of its
// package counts as a method. In place of an embedded type of this repository its fields count and, if it is of the same package, its
// methods.
func TestTypesAreSmall(t *testing.T) {
	fields, methods := map[string]int{}, map[string]int{}
	all := types(t)
	for pkg, same := range all {
		for name, d := range same {
			if d.fields != nil {
				fields[pkg+"."+name] = all.fieldsOf(d)
			}
			methods[pkg+"."+name] = len(d.methods)
			for embedded := range all.embeddedIn(d) {
				if embedded.pkg == pkg {
					methods[pkg+"."+name] += len(embedded.methods)
				}
			}
		}
	}
	maxFields.check(t, fields)
	maxMethods.check(t, methods)
}

// embedded returns the type that a field of a struct embeds, or nil if the field has a name or the type is not of this repository.
func (all typesOfPackages) embedded(in *packageType, f *ast.Field) *packageType {
	if len(f.Names) > 0 {
		return nil
	}
	if pkg, name, ok := strings.Cut(typeName(f.Type), "."); ok {
		return all[in.imports[pkg]][name]
	}
	return all[in.pkg][typeName(f.Type)]
}

// fieldsOf counts a struct's fields. In place of an embedded struct its fields count.
func (all typesOfPackages) fieldsOf(d *packageType) (n int) {
	for _, f := range d.fields.Fields.List {
		if embedded := all.embedded(d, f); embedded != nil && embedded.fields != nil {
			n += all.fieldsOf(embedded)
		} else {
			n += max(len(f.Names), 1)
		}
	}
	return n
}

// embeddedIn returns the types of this repository that a struct embeds, directly or in another embedded struct.
func (all typesOfPackages) embeddedIn(d *packageType) map[*packageType]bool {
	out := map[*packageType]bool{}
	if d.fields == nil {
		return out
	}
	for _, f := range d.fields.Fields.List {
		if embedded := all.embedded(d, f); embedded != nil {
			out[embedded] = true
			for further := range all.embeddedIn(embedded) {
				out[further] = true
			}
		}
	}
	return out
}
