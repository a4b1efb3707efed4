package house_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/quirkcheck/quirkcheck/"

// allowed lists what of ours each package may import; test files may import
// more. A package that is not here must be added with its reason.
var allowed = map[string][]string{
	"schema":                           {},
	"internal/kernel":                  {},
	"internal/ioctl":                   {},
	"probe/scsi":                       {},
	"probe/ata":                        {},
	"probe/nvme":                       {},
	"probe/dump":                       {},
	"probe/klog":                       {},
	"probe/decode":                     {"probe/scsi", "probe/ata", "probe/nvme"},
	"quirks":                           {"schema", "internal/kernel"},
	"quirks/mkindex":                   {"quirks"},
	"quirks/kernelsource":              {"quirks", "internal/kernel"},
	"probe":                            {"probe/scsi", "probe/ata", "probe/nvme", "internal/kernel", "internal/ioctl"},
	"probe/capture":                    {"probe", "probe/scsi", "probe/ata", "probe/nvme", "schema"},
	"checker":                          {"quirks", "probe", "internal/kernel", "probe/klog"},
	"checker/store":                    {},
	"checker/enforce":                  {"checker", "checker/store", "internal/kernel"},
	"checker/emit":                     {"checker", "quirks", "internal/kernel"},
	"checker/audit":                    {"checker", "quirks", "probe", "internal/kernel", "checker/enforce"},
	"checker/verify":                   {"checker/verify/pattern"},
	"checker/verify/pattern":           {},
	"checker/verify/target":            {"checker/verify", "checker/verify/pattern", "checker/enforce", "internal/ioctl", "probe", "probe/scsi"},
	"cmd/quirkcheck":                   {"quirks", "probe", "checker", "checker/audit", "checker/emit", "checker/enforce", "checker/store", "checker/verify", "checker/verify/target", "schema", "internal/kernel", "probe/dump", "probe/decode", "probe/nvme", "probe/capture", "probe/klog", "quirks/kernelsource"},
	"internal/house":                   {},
	"packaging":                        {},
	"internal/recorded":                {},
	"internal/sysfstree":               {},
	"internal/sysfstree/cmd/sysfstree": {"internal/sysfstree"},
	"internal/vm":                      {"internal/vm/wire", "internal/vm/nbd", "internal/vm/faultdisk", "internal/vm/tcmu"},
	"internal/vm/wire":                 {},
	"internal/vm/guest":                {"internal/vm/wire", "internal/vm/tcmu"},
	"internal/vm/tcmu":                 {},
	"internal/vm/nbd":                  {"internal/vm/faultdisk"},
	"internal/vm/faultdisk":            {},
}

// only lists the packages that may import a third-party module.
var only = map[string][]string{
	"github.com/spf13/cobra":                {"cmd/quirkcheck"},
	"github.com/spf13/viper":                {"cmd/quirkcheck"},
	"github.com/mattn/go-sqlite3":           {"quirks/exchange", "checker/store"},
	"github.com/dswarbrick/smart":           {"probe/ata"},
	"github.com/santhosh-tekuri/jsonschema": {"schema"},
	"go.yaml.in/yaml":                       {"quirks", "schema"},
	"golang.org/x/sys":                      {"probe", "checker/enforce", "checker/store", "checker/verify/target", "internal/ioctl", "internal/vm", "internal/vm/guest", "internal/vm/tcmu"},
}

// testOnly are packages that nothing but tests and their tools may import.
var testOnly = []string{"internal/recorded", "internal/sysfstree", "internal/vm", "internal/house"}

type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []pkg
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		may, known := allowed[name]
		if !known {
			t.Errorf("%s: not in the list of packages and what they may import", name)
			continue
		}
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module); ok {
				if !slices.Contains(may, ours) {
					t.Errorf("%s imports %s; it may import %v", name, ours, may)
				}
				if slices.Contains(testOnly, ours) && !strings.HasPrefix(name, ours) {
					t.Errorf("%s imports %s outside a test", name, ours)
				}
				continue
			}
			for prefix, users := range only {
				if (imp == prefix || strings.HasPrefix(imp, prefix+"/")) && !slices.Contains(users, name) {
					t.Errorf("%s imports %s; only %v may", name, imp, users)
				}
			}
		}
	}
}

// TestTopLevel holds the list of what may lie at the top of the tree.
func TestTopLevel(t *testing.T) {
	may := []string{".ci", ".git", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE", "README.md",
		"bin", "checker", "cmd", "docs", "go.mod", "go.sum", "internal", "packaging", "probe", "quirks", "schema"}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		scratch := strings.HasSuffix(e.Name(), ".test") || strings.HasSuffix(e.Name(), ".prof") // ignored by git
		if !scratch && !slices.Contains(may, e.Name()) {
			t.Errorf("%s does not belong at the top of the tree", e.Name())
		}
	}
}

// TestReadmeOpensWithTheTwoCommands keeps the promise of the README.
func TestReadmeOpensWithTheTwoCommands(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	head := string(text[:min(len(text), 2000)])
	for _, want := range []string{"make scan", "make test", "Go 1.25", "gcc"} {
		if !strings.Contains(head, want) {
			t.Errorf("the first 2,000 bytes of the README do not say %q", want)
		}
	}
}
