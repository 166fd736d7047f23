package kube

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
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

// Rate limits of the client. The default of client-go is five requests per second, with
// which forty concurrent starts would take six seconds.
const (
	queriesPerSecond = 50
	queryBurst       = 200
)

// pods is the resource of Pods and their logs.
const pods = "pods"

// client sends requests to the API server. It follows no redirect and is safe for
// concurrent use.
type client struct {
	api        rest.Interface
	parameters machinery.ParameterCodec
	host       string // of the API server, for messages
}

// init discards the log lines of client-go, which otherwise go to standard error. klog must not be
// changed while any client of the process is in use, so this is done before main starts.
func init() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// newClient returns a client. It makes no request. The scheme contains only core/v1: the
// generated clientset would add 15 MB to the program and 10 MB of memory.
func newClient(config *rest.Config) (*client, error) {
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
	config.Timeout = 0 // would also end watches and logs; each request has its own timeout
	config.WarningHandlerWithContext = warningHandler{}

	api, err := withoutRedirects(config)
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client: %w", err)
	}
	return &client{api: api, parameters: machinery.NewParameterCodec(scheme), host: config.Host}, nil
}

// withoutRedirects returns a client for which a redirect is an error. An API server sends
// no redirects, but a server in its place may: client-go would follow them, and its
// transport would send the agent's token to another host.
func withoutRedirects(config *rest.Config) (rest.Interface, error) {
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client := *shared // a copy, because without credentials shared is http.DefaultClient
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return rest.RESTClientForConfigAndClient(config, &client)
}

// warningsKey is the key of a context's value of type func(string).
type warningsKey struct{}

// withWarnings returns a context for requests; handle is called with each warning of the
// API server.
func withWarnings(ctx context.Context, handle func(text string)) context.Context {
	return context.WithValue(ctx, warningsKey{}, handle)
}

// warningHandler passes warnings of the API server to the function in the context of the
// request.
type warningHandler struct{}

func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if handle, ok := ctx.Value(warningsKey{}).(func(string)); ok && code == 299 && text != "" {
		handle(text)
	}
}

// create creates a Pod. If dry is true, the API server validates the Pod and creates
// nothing.
func (c *client) create(ctx context.Context, namespace string, pod *corev1.Pod, dry bool) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.CreateOptions{FieldManager: managedByValue}
	if dry {
		options.DryRun = []string{metav1.DryRunAll}
	}
	created := &corev1.Pod{}
	err := c.api.Post().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).
		Body(pod).Do(ctx).Into(created)
	return created, withCause(ctx, err)
}

// get returns a Pod.
func (c *client) get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	pod := &corev1.Pod{}
	err := c.api.Get().Namespace(namespace).Resource(pods).Name(name).Do(ctx).Into(pod)
	return pod, withCause(ctx, err)
}

// update replaces a Pod. The Pod must be complete and have a resourceVersion: the API
// server accepts an update without one even if the Pod has changed since it was read.
func (c *client) update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod.ResourceVersion == "" || len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("update Pod %s: the object is incomplete", pod.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	updated := &corev1.Pod{}
	err := c.api.Put().Namespace(pod.Namespace).Resource(pods).Name(pod.Name).
		VersionedParams(&metav1.UpdateOptions{FieldManager: managedByValue}, c.parameters).
		Body(pod).Do(ctx).Into(updated)
	return updated, withCause(ctx, err)
}

// delete deletes the Pod with this name and uid.
func (c *client) delete(ctx context.Context, namespace, name, uid string, grace int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	options := metav1.DeleteOptions{
		GracePeriodSeconds: &grace,
		Preconditions:      &metav1.Preconditions{UID: new(types.UID(uid))},
	}
	// Get reads the response; otherwise an HTML page of a proxy would count as success.
	_, err := c.api.Delete().Namespace(namespace).Resource(pods).Name(name).Body(&options).Do(ctx).Get()
	return withCause(ctx, err)
}

// list returns one page of the Pods that match the options.
func (c *client) list(ctx context.Context, namespace string, options metav1.ListOptions) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	all := &corev1.PodList{}
	err := c.api.Get().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).Do(ctx).Into(all)
	return all, withCause(ctx, err)
}

// watch starts a watch of Pods. It does not retry: client-go would wait as long as a
// Retry-After header requires.
func (c *client) watch(ctx context.Context, namespace string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	ctx, cancel := context.WithCancelCause(ctx)
	startTimer := time.AfterFunc(watchStartLimit, func() { cancel(context.DeadlineExceeded) })
	w, err := c.api.Get().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters).
		MaxRetries(0).Watch(ctx)
	if !startTimer.Stop() && err == nil {
		w.Stop()
		err = context.DeadlineExceeded
	}
	// If the connection breaks before the response, client-go returns an empty watch of
	// another type, and no error.
	if _, ok := w.(*watch.StreamWatcher); err == nil && !ok {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		err = withCause(ctx, err)
		cancel(nil)
		return nil, err
	}

	// End the watch if the API server does not end it at its timeout.
	limited := limitedWatch{Interface: w, stop: func() { cancel(nil) }}
	if seconds := options.TimeoutSeconds; seconds != nil {
		endTimer := time.AfterFunc(time.Duration(*seconds)*time.Second+watchOvertime, limited.stop)
		limited.stop = func() {
			endTimer.Stop()
			cancel(nil)
		}
	}
	return limited, nil
}

// limitedWatch is a watch that ends at its timeout, even if the server does not end it.
type limitedWatch struct {
	watch.Interface
	stop func()
}

// Stop stops the watch and closes its connection.
func (w limitedWatch) Stop() {
	w.stop()
	w.Interface.Stop()
}

// log streams the output of the job's container in a Pod, from the first line.
func (c *client) log(ctx context.Context, namespace, name string) (io.ReadCloser, error) {
	return c.api.Get().Namespace(namespace).Resource(pods).Name(name).SubResource("log").
		VersionedParams(&corev1.PodLogOptions{Container: mainContainer, Follow: true}, c.parameters).
		MaxRetries(0).Stream(ctx)
}

// withCause adds the cause of ctx to an error that the end of ctx may explain.
func withCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

// isNotFound reports whether the API server answered that the object does not exist. An
// HTML page of a proxy with status 404 does not count.
func isNotFound(err error) bool { return apierrors.IsNotFound(err) && !fromProxy(err) }

// fromProxy reports whether a response came from a server other than the Kubernetes API
// server, such as a proxy.
func fromProxy(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
