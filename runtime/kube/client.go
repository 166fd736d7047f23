package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const pods = "pods" // the resource of Pods and their logs

// client sends requests to the API server. It follows no redirect and is safe for
// concurrent use.
type client struct {
	api        rest.Interface
	parameters machinery.ParameterCodec
	host       string   // of the API server, for messages
	limits     *limiter // nil if the configuration has its own limit
	metrics    Metrics
	serverClock
}

// init discards the log lines of client-go, which otherwise go to standard error. klog must not be
// changed while any client of the process is in use, so this is done before main starts.
func init() { klog.SetSlogLogger(slog.New(slog.DiscardHandler)) }

// newClient returns a client. It makes no request. The scheme contains only core/v1: the
// generated clientset would add 15 MB to the program and 10 MB of memory.
func newClient(config *rest.Config, metrics Metrics) (*client, error) {
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
	c := &client{parameters: machinery.NewParameterCodec(scheme), host: config.Host, metrics: metrics}
	if config.QPS == 0 && config.RateLimiter == nil {
		c.limits = newLimiter()
		config.RateLimiter = c.limits
	}
	config.Timeout = 0 // would also end watches and logs; each request has its own timeout
	config.WarningHandlerWithContext = warningHandler{}
	config.Wrap(func(base http.RoundTripper) http.RoundTripper { return counted(base, metrics) })

	api, err := withoutRedirects(config, &c.serverClock)
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client: %w", err)
	}
	c.api = api
	return c, nil
}

// withoutRedirects returns a client for which a redirect is an error. An API server sends
// no redirects, but a server in its place may: client-go would follow them, and its
// transport would send the agent's token to another host.
func withoutRedirects(config *rest.Config, clock *serverClock) (rest.Interface, error) {
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	client := *shared // a copy, because without credentials shared is http.DefaultClient
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	client.Transport = clock.wrap(cmp.Or[http.RoundTripper](client.Transport, http.DefaultTransport))
	return rest.RESTClientForConfigAndClient(config, &client)
}

type warningsKey struct{}

// withWarnings returns a context for requests; handle is called with each warning of the
// API server.
func withWarnings(ctx context.Context, handle func(text string)) context.Context {
	return context.WithValue(ctx, warningsKey{}, handle)
}

type warningHandler struct{}

func (warningHandler) HandleWarningHeaderWithContext(ctx context.Context, code int, _, text string) {
	if handle, ok := ctx.Value(warningsKey{}).(func(string)); ok && code == 299 && text != "" {
		handle(text)
	}
}

// create creates a Pod in its namespace. If dry is true, the API server only validates the Pod.
func (c *client) create(ctx context.Context, pod *corev1.Pod, dry bool) (*corev1.Pod, error) {
	created, err := c.createObject(ctx, pods, pod, dry)
	return created.(*corev1.Pod), err
}

func (c *client) get(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, sendRequest(ctx, c.api.Get().Namespace(namespace).Resource(pods).Name(name), pod)
}

// getOnce gets a Pod without the retries of client-go, which sends a get ten times if the connection
// breaks.
func (c *client) getOnce(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, sendRequest(ctx, c.api.Get().MaxRetries(0).Namespace(namespace).Resource(pods).Name(name), pod)
}

// update changes the labels and annotations of a Pod. The Pod must be complete and have a
// resourceVersion: the API server accepts an update without one even if the Pod has changed since
// it was read.
//
// A Pod of a newer API server may have fields that [corev1.Pod] does not have. The API server
// refuses an update without them, because they must not change. Then update repeats the
// request with the JSON of the Pod.
func (c *client) update(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	if pod.ResourceVersion == "" || len(pod.Spec.Containers) == 0 {
		return nil, fmt.Errorf("update Pod %s: the object is incomplete", pod.Name)
	}
	updated, err := c.updateObject(ctx, pods, pod)
	if apierrors.IsInvalid(err) && !fromProxy(err) {
		return c.updateJSON(ctx, pod)
	}
	return updated.(*corev1.Pod), err
}

// updateJSON sets the labels and annotations of a Pod, and keeps all other parts of its JSON. It
// returns a conflict if the version of the Pod is not the current one.
func (c *client) updateJSON(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	const form = machinery.ContentTypeJSON
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	response := c.api.Get().Namespace(pod.Namespace).Resource(pods).Name(pod.Name).SetHeader("Accept", form).Do(ctx)
	if err := response.Error(); err != nil { // decodes the error, unlike Raw
		return nil, withCause(ctx, err)
	}
	text, _ := response.Raw()
	var found, metadata map[string]json.RawMessage
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("read the JSON of Pod %s: %w", pod.Name, err)
	}
	if err := json.Unmarshal(found["metadata"], &metadata); err != nil {
		return nil, fmt.Errorf("read the metadata of Pod %s: %w", pod.Name, err)
	}
	var version string
	if json.Unmarshal(metadata["resourceVersion"], &version) != nil || version != pod.ResourceVersion {
		return nil, apierrors.NewConflict(corev1.Resource(pods), pod.Name, errors.New("the Pod has changed"))
	}
	metadata["labels"], _ = json.Marshal(pod.Labels) // neither can fail: maps of strings
	metadata["annotations"], _ = json.Marshal(pod.Annotations)
	found["metadata"], _ = json.Marshal(metadata) // valid JSON
	body, _ := json.Marshal(found)
	options := metav1.UpdateOptions{FieldManager: managedByValue}
	updated := &corev1.Pod{}
	return updated, sendRequest(ctx, c.api.Put().Namespace(pod.Namespace).Resource(pods).Name(pod.Name).
		VersionedParams(&options, c.parameters).SetHeader("Content-Type", form).Body(body), updated)
}

func (c *client) delete(ctx context.Context, namespace, name, uid string, grace int64) error {
	return c.deleteObject(ctx, pods, namespace, name, metav1.DeleteOptions{
		GracePeriodSeconds: &grace, Preconditions: metav1.NewUIDPreconditions(uid),
	})
}

// list returns one page of the Pods that match the options.
func (c *client) list(ctx context.Context, namespace string, options metav1.ListOptions) (*corev1.PodList, error) {
	all := &corev1.PodList{}
	request := c.api.Get().Namespace(namespace).Resource(pods).VersionedParams(&options, c.parameters)
	return all, sendRequest(ctx, request, all)
}

func sendRequest(ctx context.Context, request *rest.Request, response machinery.Object) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return withCause(ctx, request.Do(ctx).Into(response))
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
		VersionedParams(&corev1.PodLogOptions{Container: MainContainer, Follow: true}, c.parameters).
		MaxRetries(0).Stream(ctx)
}

// withCause adds the cause of ctx to an error that the end of ctx may explain.
func withCause(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), err)
}

// isNotFound, isConflict and isForbidden report whether the API server itself sent the error. An
// HTML page of a proxy with such a status does not count. The conflict of a quota is no conflict of the
// object in the request.
func isNotFound(err error) bool  { return apierrors.IsNotFound(err) && !fromProxy(err) }
func isConflict(err error) bool  { return apierrors.IsConflict(err) && !temporary(err) }
func isForbidden(err error) bool { return apierrors.IsForbidden(err) && !fromProxy(err) }

// fromProxy reports whether a response came from a server other than the Kubernetes API
// server, such as a proxy.
func fromProxy(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}
