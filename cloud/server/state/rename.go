package state

import (
	"bytes"
	"fmt"
	"strings"
)

// Name is the name of a stack within an organization.
type Name struct{ Project, Stack string }

// Rename returns the deployment for a stack that gets another name: the names in all URNs, and in the
// secrets provider. URNs are the strings, at any place, that begin with urn:pulumi:STACK::PROJECT::, such as
// urn, parent, provider, dependencies, and values of inputs and outputs, but not names of fields. With a
// state that is not renamed, the next update would replace every resource.
func Rename(d *Deployment, from, to Name) *Deployment {
	text := d.rewriteProvider(field{"project", encode(to.Project)}, field{"stack", encode(to.Stack)}).Encode()
	prefix := fmt.Sprintf("urn:pulumi:%s::%s::", from.Stack, from.Project)

	renamed := make([]byte, 0, len(text)+len(text)/8)
	copied := 0
	for i := 0; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		stop := endOfString(text, i)
		if tail, ok := cutPrefix(text[i:stop], prefix); ok && text[stop] != ':' {
			renamed = append(renamed, text[copied:i]...)
			renamed = append(renamed, encode(renameURN(tail, to))...)
			copied = stop
		}
		i = stop - 1
	}
	other, err := Decode(append(renamed, text[copied:]...))
	if err != nil {
		panic(err) // other strings in the same places
	}
	return other
}

// cutPrefix returns the text of a JSON string without the prefix, and whether it has the prefix.
func cutPrefix(value []byte, prefix string) (string, bool) {
	start := value[1:min(len(value), len(prefix)+1)]
	if string(start) != prefix && bytes.IndexByte(start, '\\') < 0 {
		return "", false
	}
	return strings.CutPrefix(unquote(value), prefix)
}

// renameURN returns the URN with new names. tail is the URN behind the old names, such as TYPE::NAME.
// The name of the root stack is PROJECT-STACK.
func renameURN(tail string, to Name) string {
	if strings.HasPrefix(tail, rootStackType+"::") {
		tail = rootStackType + "::" + to.Project + "-" + to.Stack
	}
	return fmt.Sprintf("urn:pulumi:%s::%s::%s", to.Stack, to.Project, tail)
}
