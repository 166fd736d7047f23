package kubetest

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestDropWatches checks that a watch sends no change that follows DropWatches. Tests of
// outages rely on this.
func TestDropWatches(t *testing.T) {
	for range 100 {
		api := NewAPI(t)
		client := Client(t, api.Config(), corev1.SchemeGroupVersion)
		events, err := client.Get().Namespace("default").Resource("pods").Param("watch", "true").Watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		put := func(name string) {
			api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}})
		}
		for i := range 20 { // so that the watch is sending when it is dropped
			put(fmt.Sprint("before-", i))
		}
		api.DropWatches()
		put("after")
		for event := range events.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); !ok || pod.Name == "after" {
				t.Fatalf("got %v %v after the watch was dropped", event.Type, event.Object)
			}
		}
	}
}
