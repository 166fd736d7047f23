package docker

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"maps"
	"strconv"
	"strings"

	"github.com/cmwa-project/cmwa/runtime"
)

// reserved begins the names of the agent's own labels.
const reserved = "cmwa."

// Labels of what an agent makes. Those of a job's container are all that is
// known of the job after a restart.
const (
	labelAgent      = "cmwa.agent"
	labelPool       = "cmwa.pool"
	labelPoolName   = "cmwa.pool-name"
	labelIdentity   = "cmwa.pool-identity" // of the pool, in JSON
	labelJob        = "cmwa.job"
	labelSubject    = "cmwa.subject"
	labelGeneration = "cmwa.generation"
	labelFolder     = "cmwa.folder" // the job's folder below shared_volume_directory
	labelRunner     = "cmwa.runner" // on volumes and their doors: digest of the program
	labelOwner      = "cmwa.owner"  // on doors: see owner
)

// labels are the configured ones and the agent's own. A configured one never
// has the name of an own one, also not of one that this job has not.
func labels(job *runtime.Job, folder string) map[string]string {
	all := map[string]string{}
	for _, label := range job.Tuning.Place.Docker.Labels {
		name, value, _ := strings.Cut(label, "=")
		if name != "" && !strings.HasPrefix(name, reserved) {
			all[name] = value
		}
	}
	maps.Copy(all, map[string]string{
		labelAgent:      job.Agent,
		labelPool:       job.Pool,
		labelPoolName:   job.PoolName,
		labelIdentity:   identityText(job.Identity),
		labelJob:        job.ID,
		labelSubject:    job.Subject,
		labelGeneration: strconv.FormatUint(job.Generation, 10),
	})
	if folder != "" {
		all[labelFolder] = folder
	}
	return all
}

// target is the deploy_target of this executor.
const target = "docker"

// identityText returns the value of labelIdentity.
func identityText(identity runtime.Identity) string {
	text, err := json.Marshal(identity)
	if err != nil {
		panic(err) // strings only
	}
	return string(text)
}

// poolOf returns the pool that the labels name. A label that somebody has damaged
// names a pool that is not configured.
func poolOf(labels map[string]string) runtime.PoolSpec {
	spec := runtime.PoolSpec{Name: labels[labelPoolName]}
	if json.Unmarshal([]byte(labels[labelIdentity]), &spec.Identity) != nil {
		spec.Identity = runtime.Identity{}
	}
	spec.Identity.Target = cmp.Or(spec.Identity.Target, target)
	return spec
}

// namePrefix begins the names of containers and folders of jobs, so that a
// person finds them.
const namePrefix = "pulumi-workflow-"

// newName names a job's container, and its folder if it has one. The job's id
// is only there for people, and as much of it as a name can hold.
func newName(job string) string {
	readable := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, job)
	return namePrefix + readable[:min(len(readable), 12)] + "-" + strings.ToLower(rand.Text()[:8])
}

// isID tells whether the text can be the id of a container. Ids become parts of
// URLs, where anything else would name something else.
func isID(id string) bool {
	return len(id) == 64 && strings.Trim(id, "0123456789abcdef") == ""
}

// short is an id as people write it.
func short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}
