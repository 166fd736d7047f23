package kube

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/cmwa-project/cmwa/runtime"
)

const dockerHubKey = "https://index.docker.io/v1/" // the key of credentials for docker.io

func pullSecretOf(pod string) string { return pod + "-pull" }

// hasCredentials reports whether a job has credentials for the registry of its image. It
// returns false if another image overrides the job's image.
func hasCredentials(job *runtime.Job) bool {
	image := job.Definition.Image
	return job.Tuning.Instance.OverrideImage == "" && (image.Username != "" || !image.Password.Empty())
}

// addPullSecret creates an image pull secret with the credentials of a job. It is called
// directly after the create of the Pod. The Pod owns the secret. The kubelet reads the
// secret after the init container, when it pulls the image of the job's container. The
// agent needs only the right to create Secrets, and reads none. Without this right the job
// continues, because the image may be public or already on the node.
func (s *starting) addPullSecret(ctx context.Context) error {
	if !hasCredentials(s.job) {
		return nil
	}
	config, registry, err := dockerConfig(s.job.Definition.Image)
	if err != nil {
		return err
	}
	e := s.executor
	secret := &corev1.Secret{
		ObjectMeta: e.objectMeta(s.job, pullSecretOf(s.created.Name), s.deadline),
		Type:       corev1.SecretTypeDockerConfigJson,
		Data:       map[string][]byte{corev1.DockerConfigJsonKey: config},
	}
	secret.OwnerReferences = ownedBy(s.created.Name, s.created.UID)
	var forbidden error
	rules := retry{deadline: s.deadline, explain: func(err error) error {
		if apierrors.IsForbidden(err) {
			forbidden = err
		}
		return e.explainObject("create", secrets, err)
	}}
	err = e.createObject(ctx, secrets, secret, rules)
	switch {
	case err == nil:
		s.setup.Log("The job's credentials for %s are in the image pull secret %s", registry, secret.Name)
	case forbidden != nil && ctx.Err() == nil:
		s.setup.Log("The job has credentials for %s, but the agent may not create Secrets in namespace %s (%s). "+
			"If the image needs them, grant create on secrets to the agent's service account, or set imagePullSecrets "+
			"in pod_template or in the service account of the Pods", registry, e.namespace, tail(forbidden.Error()))
	default:
		return err
	}
	return nil
}

// dockerConfig returns the credentials of an image in the format of a Docker configuration,
// and their registry. Its errors do not contain the credentials.
func dockerConfig(image runtime.Image) (config []byte, registry string, err error) {
	named, err := reference.ParseDockerRef(image.Reference)
	if err != nil {
		return nil, "", runtime.NewJobFault("the job's image %q is not a valid reference: %w", image.Reference, err)
	}
	registry = reference.Domain(named)
	key := registry
	if registry == "docker.io" {
		key = dockerHubKey
	}
	password := image.Password.Reveal()
	config, _ = json.Marshal(map[string]map[string]map[string]string{"auths": {key: { // strings: never fails
		"username": image.Username, "password": password,
		"auth": base64.StdEncoding.EncodeToString([]byte(image.Username + ":" + password)),
	}}})
	return config, registry, nil
}
