package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// oidcFile is the path of the job's OIDC token, relative to the root of the job (Pulumi
// documentation, OIDC in Deployments).
const oidcFile = "mnt/pulumi/pulumi.oidc"

// writeOIDC writes the file of the token and returns a function that removes it.
func writeOIDC(root, token string) (remove func(), err error) {
	path := filepath.Join(root, oidcFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("write the OIDC token's file: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".pulumi.oidc-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("write the OIDC token's file: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = file.WriteString(token)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return nil, fmt.Errorf("write the OIDC token's file: %w", err)
	}
	return func() { _ = os.Remove(path) }, nil
}
