package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// Limits of the client. Without its own values, client-go allows five requests a
// second, which makes forty starts at once take six seconds.
const (
	queriesPerSecond = 50
	queryBurst       = 200
)

// Limits of calls to the API server. The client's own limiter counts against
// them, so they are longer than any wait of it that is worth having.
const (
	callLimit   = time.Minute      // of a call that the server answers at once
	streamLimit = 30 * time.Second // until a log begins to arrive

	// Until a watch begins to arrive: some proxies hold the headers back until the
	// first event, and the API server sends a bookmark once a minute.
	watchStartLimit = 2 * time.Minute
	// Beyond the time after which the API server ends a watch. A watch whose server
	// is lost behind a proxy would be silent for ever.
	watchOvertime = 30 * time.Second
)

// pods is the resource of Pods and their logs.
const pods = "pods"

// client makes the calls to the API server. It follows no redirect.
type client struct {
	rest       rest.Interface
	parameters machinery.ParameterCodec
	host       string // of the API server, for messages
}

// silence ends client-go's own log lines, which go to standard error otherwise.
var silence = sync.OnceFunc(func() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) })

// newClient makes a client and sends nothing. The scheme knows core/v1 only: the
// generated clientset costs 15 MB of program and 10 MB of memory more.
func newClient(config *rest.Config) (*client, error) {
	silence()
	scheme := machinery.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client: %w", err)
	}
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config = rest.CopyConfig(config)
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.APIPath = "/api"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType = machinery.ContentTypeProtobuf
	config.AcceptContentTypes = machinery.ContentTypeProtobuf + "," + machinery.ContentTypeJSON
	if config.QPS == 0 {
		config.QPS, config.Burst = queriesPerSecond, queryBurst
	}
	config.Timeout = 0 // of watches and logs, too; each call has its own
	config.WarningHandlerWithContext = warnings{}
	r, err := withoutRedirects(config)
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client: %w", err)
	}
	return &client{rest: r, parameters: machinery.NewParameterCodec(scheme), host: config.Host}, nil
}

// withoutRedirects returns a client for which a redirect is a failed call. An API server
// sends none, but what answers in its place may: client-go would follow it, and its
// transport would send the agent's token to whatever host it names.
func withoutRedirects(config *rest.Config) (rest.Interface, error) {
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	own := *shared // without credentials it is Go's default client
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return rest.RESTClientForConfigAndClient(config, &own)
}

// warningsKey is the key of a context's value of type func(string).
type warningsKey struct{}

// withWarnings returns a context whose calls pass the API server's warnings to say.
func withWarnings(ctx context.Context, say func(text string)) context.Context {
	return context.WithValue(ctx, warningsKey{}, say)
}

// warnings passes warnings of the API server to the caller of the call.
type warnings struct{}

func (warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if say, ok := ctx.Value(warningsKey{}).(func(string)); ok && code == 299 && text != "" {
		say(text)
	}
}

// create creates a Pod. With dry, the API server checks it and creates nothing.
func (c *client) create(ctx context.Context, namespace string, pod *corev1.Pod, dry bool) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.CreateOptions{FieldManager: managedByValue}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	created := &corev1.Pod{}
	err := c.rest.Post().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).
		Body(pod).Do(ctx).Into(created)
	return created, because(ctx, err)
}

// get returns a whole Pod.
func (c *client) get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	pod := &corev1.Pod{}
	err := c.rest.Get().Namespace(namespace).Resource(pods).Name(name).Do(ctx).Into(pod)
	return pod, because(ctx, err)
}

// update replaces a Pod. It must be a whole one, and have a resourceVersion: the
// API server accepts an update without one even if the Pod has changed meanwhile.
func (c *client) update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod.ResourceVersion == "" || len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("update Pod %s: the object is not a whole one", pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	updated := &corev1.Pod{}
	err := c.rest.Put().Namespace(pod.Namespace).Resource(pods).Name(pod.Name).
		VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters).
		Body(pod).Do(ctx).Into(updated)
	return updated, because(ctx, err)
}

// delete deletes the Pod with this uid.
func (c *client) delete(ctx context.Context, namespace, name, uid string, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.DeleteOptions{
		GracePeriodSeconds: &grace,
		Preconditions:      &metav1.Preconditions{UID: new(types.UID(uid))},
	}
	// Get reads the answer; without that, the page of a proxy is taken for success.
	_, err := c.rest.Delete().Namespace(namespace).Resource(pods).Name(name).Body(&options).Do(ctx).Get()
	return because(ctx, err)
}

// list returns one page of the Pods with these labels.
func (c *client) list(ctx context.Context, namespace string, options metav1.ListOptions) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all := &corev1.PodList{}
	err := c.rest.Get().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).Do(ctx).Into(all)
	return all, because(ctx, err)
}

// watch begins to watch Pods. It does not retry: client-go would wait for as long
// as a Retry-After asks for.
func (c *client) watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	ctx, cancel := context.WithCancelCause(ctx)
	slow := time.AfterFunc(watchStartLimit, func() { cancel(context.DeadlineExceeded) })
	w, err := c.rest.Get().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).
		MaxRetries(0).Watch(ctx)
	if !slow.Stop() && err == nil {
		w.Stop()
		err = context.DeadlineExceeded
	}
	// For a connection that breaks before the answer, client-go returns an empty
	// watch of another type, and no error.
	if _, ok := w.(*watch.StreamWatcher); err == nil && !ok {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		err = because(ctx, err)
		cancel(nil)
		return nil, err
	}
	limited := limitedWatch{Interface: w, stop: func() { cancel(nil) }}
	if seconds := options.TimeoutSeconds; seconds != nil {
		overdue := time.AfterFunc(time.Duration(*seconds)*time.Second+watchOvertime, limited.stop)
		limited.stop = func() {
			overdue.Stop()
			cancel(nil)
		}
	}
	return limited, nil
}

// limitedWatch is a watch that ends in time, even if its server does not.
type limitedWatch struct {
	watch.Interface
	stop func()
}

// Stop ends the watch.
func (w limitedWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

// log streams the output of a Pod's job container from its beginning.
func (c *client) log(ctx context.Context, namespace, name string) (io.ReadCloser, error) {
	return c.rest.Get().Namespace(namespace).Resource(pods).Name(name).SubResource("log").
		VersionedParams(&corev1.PodLogOptions{Container: mainContainer, Follow: true}, c.parameters).
		MaxRetries(0).Stream(ctx)
}

// because adds the cause of a context's end to an error that it explains.
func because(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

// absent reports whether the API server states that there is no such Pod. A page of
// a proxy with that status states nothing.
func absent(err error) bool { return apierrors.IsNotFound(err) && !fromProxy(err) }

// fromProxy reports whether an answer is not one of a Kubernetes API server, but of
// something before it.
func fromProxy(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
