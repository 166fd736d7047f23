package server

import "github.com/cmwa-project/cmwa/cloud/server/store"

// noConfig is why a stack has no config in the service. Pulumi Cloud keeps it in an environment.
const noConfig = "this service has no environments, so it cannot keep the config of a stack: " +
	"keep it in a file, such as Pulumi.dev.yaml"

// getStackConfig answers that the config of a stack is in its file.
func (s *Server) getStackConfig(c *call) (reply, error) {
	return s.withoutConfig(c, notFound(noConfig))
}

func (s *Server) putStackConfig(c *call) (reply, error) {
	return s.withoutConfig(c, badRequest(noConfig))
}

// deleteStackConfig succeeds, because there is no config to delete.
func (s *Server) deleteStackConfig(c *call) (reply, error) {
	return s.withoutConfig(c, nil)
}

// withoutConfig returns the result of a call for an existing stack.
func (s *Server) withoutConfig(c *call, result error) (reply, error) {
	return reply{}, s.db.Read(c.Context(), func(t *store.Tx) error {
		if _, err := s.stackFromPath(t, c); err != nil {
			return err
		}
		return result
	})
}
