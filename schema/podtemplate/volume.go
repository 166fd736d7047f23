package podtemplate

import (
	"slices"
	"strings"

	"github.com/cmwa-project/cmwa/schema/position"
)

// volumeSources are the types of volumes.
var volumeSources = []string{
	"awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI",
	"emptyDir", "ephemeral", "fc", "flexVolume", "flocker",
	"gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image", "iscsi", "nfs", "persistentVolumeClaim",
	"photonPersistentDisk", "portworxVolume", "projected",
	"quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
}

func (r rules) volumeRules() {
	list := r.spec.get("volumes").entries()
	r.unique(list, "name", map[string]bool{})
	for _, volume := range list {
		if volume.hasNoKeys() {
			continue
		}
		r.volumes[volume.get("name").text()] = volume
		switch found := volume.present(volumeSources...); len(found) {
		case 1:
		case 0:
			r.warn(volume.v.At, volume.path, "has no source, and becomes an empty directory",
				"write emptyDir: {} if you want an empty directory")
		default:
			r.invalid(volume, "must have one source, and has "+strings.Join(found, ", "), "keep one of them")
		}
		r.notNegative(volume.get("emptyDir", "sizeLimit"))
		for _, item := range volume.get("downwardAPI", "items").entries() {
			r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
			r.reference(item, true)
		}
		r.projected(volume.get("projected"))
		r.otherSources(volume)
	}
}

// projected checks the sources of a projected volume.
func (r rules) projected(n node) {
	// uniquePath reports a path that two files of the volume have.
	paths := map[string]bool{}
	uniquePath := func(v node) {
		if text := v.text(); text != "" {
			if paths[text] {
				r.invalid(v, "is used twice in this volume", "give each file a path of its own")
			}
			paths[text] = true
		}
	}

	// Each source must have only one type of content.
	for _, source := range n.get("sources").entries() {
		if found := source.present("clusterTrustBundle", "configMap", "downwardAPI", "podCertificate", "secret",
			"serviceAccountToken"); len(found) > 1 {
			r.invalid(source, "must have one kind of content, and has "+strings.Join(found, ", "),
				"write each kind as its own entry of sources")
		}

		for _, kind := range []string{"secret", "configMap", "downwardAPI"} {
			for _, item := range source.get(kind, "items").entries() {
				uniquePath(item.get("path"))
				if kind == "downwardAPI" {
					r.exactlyOne(item, "a reference", "fieldRef", "resourceFieldRef")
					r.reference(item, true)
				}
			}
		}
		if certificate, ok := source.field("podCertificate"); ok {
			files := []string{"certificateChainPath", "credentialBundlePath", "keyPath"}
			if !slices.ContainsFunc(files, func(key string) bool { return certificate.get(key).text() != "" }) {
				r.invalid(certificate, "needs a path", "write one of "+strings.Join(files, ", "))
			}
			for _, key := range files {
				uniquePath(certificate.get(key))
			}
		}
		if bundle, ok := source.field("clusterTrustBundle"); ok {
			r.exactlyOne(bundle, "a name", "name", "signerName")
			uniquePath(bundle.get("path"))
		}
	}
}

// otherSources checks volumes of rarely used types.
func (r rules) otherSources(volume node) {
	if fc, ok := volume.field("fc"); ok {
		if (len(fc.get("targetWWNs").entries()) == 0) == (len(fc.get("wwids").entries()) == 0) {
			r.invalid(fc, "must have one of targetWWNs and wwids", "")
		}
		if fc.has("targetWWNs") && !fc.has("lun") {
			r.invalid(fc, "needs lun if targetWWNs is set", "")
		}
	}
	if flocker, ok := volume.field("flocker"); ok {
		if (flocker.get("datasetName").text() == "") == (flocker.get("datasetUUID").text() == "") {
			r.invalid(flocker, "must have one of datasetName and datasetUUID", "")
		}
	}
	if iscsi, ok := volume.field("iscsi"); ok &&
		(iscsi.get("chapAuthDiscovery").isTrue() || iscsi.get("chapAuthSession").isTrue()) && !iscsi.has("secretRef") {
		r.invalid(iscsi, "needs secretRef for CHAP", "")
	}
	if disk, ok := volume.field("azureDisk"); ok {
		prefix := "https://"
		if disk.get("kind").text() == "Managed" {
			prefix = "/subscriptions/"
		}
		if v := disk.get("diskURI"); v.text() != "" && !strings.HasPrefix(v.text(), prefix) {
			r.invalid(v, "must begin with "+prefix+" for a disk of this kind", "")
		}
	}

	// Claims that are created with the Pod.
	if claim, ok := volume.get("ephemeral").field("volumeClaimTemplate"); ok {
		r.selector(claim.get("spec", "selector"))
		for _, key := range []string{"dataSource", "dataSourceRef"} {
			source := claim.get("spec", key)
			if kind := source.get("kind"); source.get("apiGroup").text() == "" && kind.text() != "" &&
				kind.text() != "PersistentVolumeClaim" {
				r.invalid(kind, "must be PersistentVolumeClaim if apiGroup is not set", "")
			}
		}
		storage := claim.get("spec", "resources", "requests", "storage")
		switch amount, known := Quantity(storage.v.Data); {
		case storage.v.Data == nil:
			r.invalid(claim, "needs spec.resources.requests.storage", "for example storage: 10Gi")
		case known && amount.Sign() <= 0:
			r.invalid(storage, "must be greater than 0", "")
		}
		for key, v := range claim.get("metadata").mapping() {
			if key != "labels" && key != "annotations" {
				r.report(position.RulePodTemplate, v.Key, position.Join(claim.path, "metadata."+position.SafeName(key)),
					"must not be set here", "only labels and annotations are allowed")
			}
		}
	}
}
