package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/cmwa-project/cmwa/runtime/kube/kubetest"
)

// expectedFiles matches the names of the files and directories that an agent and its test keep
// in the directory of a world.
var expectedFiles = regexp.MustCompile(
	`^(agent\.yaml|.*\.log|state|shared|witness|.*kubeconfig.*|\.kube|cmwa-process-\d+)$`)

// remains returns what is left of a job: its containers or Pods, their ConfigMaps and
// Secrets, its directories, temporary files, and the files of the state directory that contain
// the id of the job.
func (w *world) remains(stack, job string) (left []string) {
	w.t.Helper()

	// Containers and Pods, and the ConfigMaps and Secrets of Pods.
	if w.target != "process" {
		left = w.containers(stack)
	}
	if w.cluster != nil {
		for _, resource := range []string{"configmaps", "secrets"} {
			left = append(left, w.objects(resource, "cmwa.job="+job)...)
		}
	}

	// Directories of jobs, and temporary files of the agent.
	for _, pattern := range []string{"cmwa-process-*/*", "shared/*"} {
		found, _ := filepath.Glob(filepath.Join(w.directory, pattern))
		left = append(left, found...)
	}
	entries, err := os.ReadDir(w.directory)
	w.must(err)
	for _, entry := range entries {
		if !expectedFiles.MatchString(entry.Name()) {
			left = append(left, filepath.Join(w.directory, entry.Name()))
		}
	}

	// Files of the state directory.
	_ = filepath.WalkDir(filepath.Join(w.directory, "state"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil
		}
		if text, err := os.ReadFile(path); err == nil && job != "" &&
			(strings.Contains(path, job) || bytes.Contains(text, []byte(job))) {
			left = append(left, path)
		}
		return nil
	})
	return left
}

// objects returns the names of the objects of the namespace that match a selector.
func (w *world) objects(resource, selector string) (names []string) {
	w.t.Helper()
	var list metav1.PartialObjectMetadataList
	client := kubetest.Client(w.t, w.cluster.Admin, corev1.SchemeGroupVersion)
	w.must(client.Get().Namespace(w.cluster.Name).Resource(resource).Param("labelSelector", selector).
		SetHeader("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		Do(w.t.Context()).Into(&list))
	for _, o := range list.Items {
		names = append(names, resource+"/"+o.Name)
	}
	return names
}

// processes returns the command lines of the running processes that have the directory of the
// world in their environment.
func (w *world) processes() (left []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte(w.directory)) {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			left = append(left, strings.ReplaceAll(string(name), "\x00", " "))
		}
	}
	return left
}
