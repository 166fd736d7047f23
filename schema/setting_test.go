package schema

import "testing"

func TestSettings(t *testing.T) {
	t.Run("pools share the settings that they inherit", func(t *testing.T) {
		config, problems := Load(Source{Path: "agent.yaml", Content: []byte("polling_interval: 30s\npools:\n" +
			"  - {name: a, token: t, request_timeout: 5s}\n  - {name: b, token: other}\n")})
		if config == nil {
			t.Fatal(problems)
		}
		of := func(pool int, key string) *Setting {
			for _, s := range config.settings[pool].settings {
				if s.Key == key {
					return s
				}
			}
			t.Fatalf("pool %d has no setting %s", pool, key)
			return nil
		}
		for key, want := range map[string]bool{
			"polling_interval": true, "docker.memory": true, "request_timeout": false,
		} {
			if shared := of(1, key) == of(2, key); shared != want {
				t.Errorf("%s is shared: %t, want %t", key, shared, want)
			}
		}
	})
}
