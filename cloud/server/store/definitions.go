package store

// Definition is the definition of a deployment's job, with what it takes to decrypt it.
type Definition struct {
	Sealed    []byte // by the key of the stack
	Operation string // of the deployment; empty if its steps came with the request
	Stack     Stack  // only its id, names and key
}

// Definition returns the definition of a deployment's job.
func (t *Tx) Definition(deployment string) (d Definition, found bool, err error) {
	found, err = t.get([]any{
		&d.Sealed, &d.Operation, &d.Stack.Key, &d.Stack.ID, &d.Stack.Organization, &d.Stack.Project, &d.Stack.Name,
	}, `SELECT d.definition, d.operation, s.secret_key, s.id, s.organization, s.project, s.name
		FROM deployments d JOIN stacks s ON s.id = d.stack WHERE d.id = ?`, deployment)
	return d, found, err
}
